"""Cases of binary."""
from ._elementwise import LARGE_BINARY, binary_cases

CASES, LARGE = binary_cases(), LARGE_BINARY
