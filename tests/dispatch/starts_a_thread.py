"""A module that starts a thread when it is imported, as some do."""

import threading
import time

threading.Thread(target=time.sleep, args=(1000.0,), daemon=True).start()
