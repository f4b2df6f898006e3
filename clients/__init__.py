"""The clients: local training, defenses, probes, and the Flower ClientApp.

May import: fedsim.
"""
