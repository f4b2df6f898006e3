"""The arena: sealed victims, attacks by anybody, grades by whoever holds the truth.

``seal`` makes a public bundle of a simulated cell and a truth folder; ``submit`` turns an attack or
a file of guesses into a submission without ever reading the truth; ``grade`` scores a submission.
"""
