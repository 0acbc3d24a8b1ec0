"""Verification as a service: HTTP, and MCP for agents. `hf_factuality.serve` starts it; needs `hf_factuality[serve]`."""

KEY_VARIABLE = "HF_FACTUALITY_SERVER_KEY"
"""Environment variable with the key that clients must send."""
TRANSPORTS = ("http", "stdio", "off")
"""Where MCP can be."""
