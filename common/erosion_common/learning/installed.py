"""A custom model: a Python package that every site has installed."""

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from erosion_common.errors import ModelError
from erosion_common.learning.networks import ModelBase
from erosion_common.learning.trainable import check_trainable
from erosion_common.settings.names import Sha256
from erosion_common.settings.packages import failed, load_part

Option = bool | int | float | str
Options = dict[str, Option | list[Option]]


class InstalledModel(ModelBase):
    """A model that a package installed at each site makes: any `nn.Module`.

    The package declares an entry point in the group `erosion.models`. It names a function, or a
    class, that is called with `input_shape`, `num_outputs` and the study's `options`, and gives the
    module. A site runs it only if its `limits.installed_models` allow this name with this hash.
    """

    runs_installed_code: ClassVar[bool] = True
    has_free_shapes: ClassVar[bool] = False
    is_tried_out: ClassVar[bool] = True

    name: Literal["installed"] = "installed"
    entry_point: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9][\w.-]*$",
        description="Name of the entry point, in the group `erosion.models`, of a package that "
        "is installed at every site.",
    )
    sha256: Sha256 = Field(description="Of the package's files, as `erosion models` prints it.")
    options: Options = Field(default_factory=dict, description="Keyword arguments of the factory.")

    @property
    def gathers_statistics(self) -> bool:
        """Return True: only its own code knows."""
        return True

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Return the factory's module. Raises ModelError for any mistake of the factory."""
        what = f"The model {self.described()}"
        factory = load_part("model", self.entry_point, self.sha256)
        if not callable(factory):
            raise ModelError(
                f"{what} is a {type(factory).__name__}; it must be a function or class that makes"
                " an nn.Module."
            )
        arguments: dict[str, Any] = {
            **self.options,
            "input_shape": tuple(input_shape),
            "num_outputs": num_outputs,
        }
        try:
            signature(factory).bind(**arguments)
        except (TypeError, ValueError) as problem:
            raise failed(f"{what} does not take {', '.join(arguments)}", problem) from None
        try:
            model = factory(**arguments)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - somebody else's code
            raise failed(f"{what} could not be made", problem) from None
        return check_trainable(model, what)

    def described(self) -> str:
        return repr(self.entry_point)
