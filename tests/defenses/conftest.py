"""Single victims in memory, as the tests of attacks have them."""

from tests.attacks.conftest import pictures, victim

__all__ = ["pictures", "victim"]
