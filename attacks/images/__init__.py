"""Image attacks that match gradients."""
