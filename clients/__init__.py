"""The clients: local training, defenses, and the Flower ClientApp."""
