"""How well peers learn, measured: arms that differ in one thing, each with its own tuned rate, in one process.

python -m scripts.convergence run     trains what is missing, a line of results for each run; stop it at any time
python -m scripts.convergence page    writes docs/convergence.md and its plots from the results there are
"""
