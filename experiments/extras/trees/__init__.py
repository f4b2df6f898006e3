"""What a federated XGBoost model tells of its clients' rows.

``reading`` parses a message, ``clients`` lines up what each client sent over the rounds, ``sums``
reads counts and labels off the first tree, and ``search`` looks for rows whose gradient and hessian
sums are those of every leaf.
"""
