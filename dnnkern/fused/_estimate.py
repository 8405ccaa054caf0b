"""What programs cost beside their bytes."""
from ..engine.constants import constants
from ..engine.functions import program_instructions as instructions  # noqa: F401

COST = constants("fused/program")
