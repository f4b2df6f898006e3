"""Whether captures are what they claim."""
