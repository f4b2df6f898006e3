"""Language priors: small models of the auxiliary texts, trained by ``fedsim prior``."""
