"""Fixtures of the trainers and of the Hub, for the methods that train or push."""

from tests.hub.loopback import hub
from tests.trainers.conftest import loaded_once


__all__ = ["hub", "loaded_once"]
