"""One exception class per boundary, so that a caller can catch what it knows how to handle."""

from typing import Any


class FactualityError(Exception):
    """Base class of every error that this package raises on purpose."""


class SpanError(FactualityError, ValueError):
    """A span, a verification or a token offset that contradicts the text it belongs to."""


class ExtractionError(FactualityError):
    """Sentences or claims could not be taken out of a completion."""


class RetrievalError(FactualityError):
    """Evidence could not be found or read."""


class JudgingError(FactualityError):
    """A judge failed, or answered something that is not a judgement."""


class DataError(FactualityError, ValueError):
    """A dataset that cannot be trained on: missing column, no rows, wrong type."""


class NonFiniteError(FactualityError, ArithmeticError):
    """A loss, a gradient or a reward of a training run that is infinite or no number."""


class CheckpointError(FactualityError):
    """A checkpoint that is incomplete, inconsistent or unsafe to load."""


class HubError(FactualityError, ValueError):
    """A pipeline that cannot be saved, or a file that is none or asks for what the caller has not agreed to."""

    built: Any = None
    """What was made before it could not be published."""
