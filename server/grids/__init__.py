"""Engines for the unchanged Flower apps, behind Flower's public ``Grid`` interface."""
