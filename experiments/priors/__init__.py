"""Language priors, trained on auxiliary texts."""
