"""The one place that speaks to the API server: configuration, requests, list and watch, and the objects we write.

Nothing here knows what a device is beyond its codec, and nothing decides: callers get typed objects, or one of the
errors in `hamipy.kube.errors`. The node daemon imports this package, so it stays small: aiohttp and msgspec only.
"""
