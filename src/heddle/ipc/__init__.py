"""Child processes, and what is said between them and the server.

`child` starts, watches and ends a process; `connection` carries framed messages over a socket to one of ours, `rpc`
calls with their replies over that; `bounded` does what strangers wrote in processes with limits on time and memory.
"""
