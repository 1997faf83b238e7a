"""What a run is: model, data, optimizers and round policy, read from a TOML file; a module for each section.

Every mistake in a recipe is a `BadInput` of one line that names the file, the key and the reason.
"""

from prime_p2p.recipe.data import BYTES, HUB, STDLIB, DataRecipe, of_the_hub
from prime_p2p.recipe.inner import InnerRecipe
from prime_p2p.recipe.local import DeviceRecipe, LoggingRecipe
from prime_p2p.recipe.model import ModelRecipe
from prime_p2p.recipe.outer import OuterRecipe
from prime_p2p.recipe.recipe import Recipe
from prime_p2p.recipe.round import RoundRecipe
from prime_p2p.recipe.run import RUN_NAME, check_run_name

__all__ = [
    "BYTES",
    "HUB",
    "RUN_NAME",
    "STDLIB",
    "DataRecipe",
    "DeviceRecipe",
    "InnerRecipe",
    "LoggingRecipe",
    "ModelRecipe",
    "OuterRecipe",
    "Recipe",
    "RoundRecipe",
    "check_run_name",
    "of_the_hub",
]
