"""redis-py's own lock, told what to do by lines on stdin; each has one answer."""

import sys
import time
from pathlib import Path

import redis
from redis.exceptions import LockNotOwnedError

client = redis.Redis.from_url(sys.argv[1])
held = None


def lock(key, ttl_ms, **options):
    return client.lock(key, timeout=int(ttl_ms) / 1000, **options)


def try_once(key, ttl_ms):
    global held
    held = lock(key, ttl_ms)
    return "held" if held.acquire(blocking=False) else "busy"


def acquire(key, ttl_ms):
    global held
    held = lock(key, ttl_ms)
    return "held" if held.acquire() else "busy"


def release():
    try:
        held.release()
        return "released"
    except LockNotOwnedError:
        return "not owned"


def count(key, file, times):
    """A lost update shows two of us in here."""
    for _ in range(int(times)):
        with lock(key, 30000, sleep=0.005):
            number = int(Path(file).read_text())
            time.sleep(0.001)
            Path(file).write_text(str(number + 1))
    return "counted"


def hammer(key, hold_ms):
    """Takes and frees the lock without a pause, until it is killed."""
    answer("hammering")
    while True:
        with lock(key, 10000, sleep=0):
            time.sleep(int(hold_ms) / 1000) if hold_ms != "0" else None


def answer(text):
    print(text, flush=True)


commands = {"try": try_once, "acquire": acquire, "release": release}
commands |= {"count": count, "hammer": hammer}

client.ping()
answer("ready")
for line in sys.stdin:
    name, *words = line.split()
    answer(commands[name](*words))
