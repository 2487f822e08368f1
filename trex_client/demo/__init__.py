"""`trex demo`: money movements through seeded faults to a ledger, with real processes.

source   movements from a file
faults   which movement meets which fault, decided by a seed
place    a server, databases and roles of its own, and their removal
server, ledger_process, worker_process
         the child processes; each reads its settings from stdin and ends when stdin does
play     runs it all
books    reads both databases afterwards and compares
"""
