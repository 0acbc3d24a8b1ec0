"""Verification as a service: HTTP, and MCP for agents. `hf_factuality.serve` starts it; needs `hf_factuality[serve]`."""
