"""Health check of a container, with the standard library alone: health.py URL [CA]; exit code 0 for status 200.

``tls://HOST:PORT`` and ``unix:PATH`` are healthy where something listens.
"""

import socket
import ssl
import sys
import urllib.request
from urllib.parse import urlsplit

url, *authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority[0]) if authority else None
place = urlsplit(url)
try:
    if place.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as plain:
            plain.settimeout(15)
            plain.connect(place.path)
        sys.exit(0)
    if place.scheme == "tls":
        socket.create_connection((place.hostname or "", place.port or 0), timeout=15).close()
        sys.exit(0)
    with urllib.request.urlopen(url, timeout=15, context=context) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"{url}: {error}")
