"""Makes hamipy's image as an OCI archive, without a container registry: `python -m tools.image --help`.

Three layers: Debian's Python (mmdebstrap), the locked dependencies, hamipy. The first two are kept under
`~/.cache/hamipy/image`, named after a hash of what they are made from, so a change of the code costs seconds.
"""
