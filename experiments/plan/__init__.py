"""What an experiment file asks for, checked and laid out as cells and folders."""
