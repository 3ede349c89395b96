"""Generated from protos/ by protos/generate; do not edit."""
