"""Write the original collections, as their owners distribute them, in the layout that the datasets read.

Each download is one file of this package: it finds its cases in a folder and says how to convert each. The module
`prepare` writes the cases and counts what is left out. `python -m medfed.data prepare` is the program.
"""
