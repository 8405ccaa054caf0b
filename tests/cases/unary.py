"""Cases of unary."""
from ._elementwise import LARGE_UNARY, unary_cases

CASES, LARGE = unary_cases(), LARGE_UNARY
