"""How things are called on the page and on the terminal."""
