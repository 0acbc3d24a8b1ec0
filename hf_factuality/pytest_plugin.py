"""A plugin of pytest: `assert_supported` on a verifier that is loaded once per session.

pytest imports this file in every suite of an environment that has the package. So it imports nothing but pytest until a test asks
for one of its fixtures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest


if TYPE_CHECKING:
    from hf_factuality.spans import Verification
    from hf_factuality.verifiers.base import Verifier

_NAME = "factuality_verifier"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The name of the verifier, on the command line or in the file of settings."""
    told = "verifier of the fixtures assert_supported and factuality_verifier: a name for load_verifier"
    parser.getgroup("factuality").addoption("--factuality-verifier", dest=_NAME, metavar="NAME", help=told)
    parser.addini(_NAME, f"{told} (default small)", default="small")


@pytest.fixture(scope="session")
def factuality_verifier(pytestconfig: pytest.Config) -> Verifier:
    """The verifier of the session, loaded when the first test asks for it."""
    from hf_factuality.verifiers.registry import load_verifier

    name = pytestconfig.getoption(_NAME) or pytestconfig.getini(_NAME)
    try:
        return load_verifier(name)
    except (ValueError, TypeError, OSError) as error:
        pytest.fail(f"{_NAME} = {name}: {error}", pytrace=False)


@pytest.fixture(name="assert_supported")
def _assert_supported(factuality_verifier: Verifier) -> Callable[..., Verification]:
    """[`~hf_factuality.assert_supported`] with the verifier of the session."""
    from hf_factuality.evaluation.assertions import assert_supported as check

    def supported(
        answer: Any, evidence: Any, at_least: float = 0.8, verifier: Any = None, **options: Any
    ) -> Verification:
        __tracebackhide__ = True
        chosen = factuality_verifier if verifier is None else verifier
        return check(answer, evidence, at_least, chosen, **options)

    return supported
