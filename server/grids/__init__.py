"""Engines that run the unchanged Flower apps, behind Flower's public ``Grid`` interface."""
