"""What becomes of an attack stage: jobs, their ledger, and the workers that do them."""
