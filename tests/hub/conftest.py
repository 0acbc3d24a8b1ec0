from tests.hub.loopback import hub  # noqa: F401 - a fixture
