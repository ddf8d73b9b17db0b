from contrib import run

run("EVENT_ONLY")
