from contrib import run

run("SPAN_AND_EVENT")
