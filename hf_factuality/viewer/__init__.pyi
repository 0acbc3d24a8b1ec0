# Public names, which load on first use.
from hf_factuality.viewer.app import build_viewer as build_viewer, launch_options as launch_options
from hf_factuality.viewer.demo import build_demo as build_demo
from hf_factuality.viewer.runs import ViewedRun as ViewedRun

DEMO_VERIFIERS: tuple[str, ...]
