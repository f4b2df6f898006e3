"""The privacy of one Gaussian message, in closed form."""

import math

from scipy.optimize import brentq
from scipy.stats import norm

DELTA = 1e-5


def analytic_gaussian(noise: float, delta: float) -> float:
    """Balle & Wang 2018, theorem 8, solved for epsilon."""

    def excess(eps: float) -> float:
        tail = eps + norm.logcdf(-1 / (2 * noise) - eps * noise)
        return float(norm.cdf(1 / (2 * noise) - eps * noise) - math.exp(tail) - delta)

    return float(brentq(excess, 0, 1 / noise**2 + 20 / noise, xtol=1e-10))
