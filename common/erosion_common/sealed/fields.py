"""Fields of messages as JSON: bytes as hexadecimal, and numbers exact to the last bit."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from erosion_common.sealed.keys import KEY_BYTES
from erosion_common.sealed.roster import ATTEMPT_BYTES
from erosion_common.sealed.shares import COMMITMENT_BYTES, ENVELOPE_BYTES, SHARE_BYTES


def _from_hexadecimal(value: object) -> object:
    return bytes.fromhex(value) if isinstance(value, str) else value


def _from_hexadecimal_float(value: object) -> object:
    try:
        return float.fromhex(value) if isinstance(value, str) else value
    except OverflowError:  # which pydantic would not take for a wrong value
        raise ValueError("the number is too large") from None


Hexadecimal = Annotated[
    bytes,
    BeforeValidator(_from_hexadecimal),
    PlainSerializer(lambda value: value.hex(), return_type=str),
]
Key = Annotated[Hexadecimal, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Hash = Annotated[Hexadecimal, Field(min_length=32, max_length=32)]
Signature = Annotated[Hexadecimal, Field(min_length=8, max_length=144)]  # P-256 or P-384, DER
Attempt = Annotated[Hexadecimal, Field(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)]
Share = Annotated[Hexadecimal, Field(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
Commitment = Annotated[Hexadecimal, Field(min_length=COMMITMENT_BYTES, max_length=COMMITMENT_BYTES)]
Envelope = Annotated[Hexadecimal, Field(min_length=ENVELOPE_BYTES, max_length=ENVELOPE_BYTES)]
# Weights and scales are in the masks' keys: a last digit that changed on the way would be noise.
ExactFloat = Annotated[
    float,
    BeforeValidator(_from_hexadecimal_float),
    PlainSerializer(lambda value: float(value).hex(), return_type=str),
]
# Far beyond any vector of float32, and its square is a number.
Length = Annotated[ExactFloat, Field(ge=0, le=1e100, allow_inf_nan=False)]
