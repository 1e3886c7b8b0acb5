"""Serves moto as S3 does: requests are handled one at a time, so that a condition and its write are one step.

moto checks the condition of a request and stores the object without a lock: with two requests at once both may succeed.
"""

import io
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

application = DomainDispatcherApplication(create_backend_app)
turn = threading.Lock()


def one_at_a_time(environ, start_response):
    # The body is read before the turn begins: a slow client holds up itself alone.
    if environ.get("CONTENT_LENGTH"):
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(body)
    with turn:
        return list(application(environ, start_response))


run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
