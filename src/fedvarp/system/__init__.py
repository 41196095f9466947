"""What the operating system and files of unknown origin ask for; below everything but errors.

processes     cores, memory, Ctrl-C, the death of a parent
whole_files   files that are written whole or not at all, and kept through a power failure
parsing       text, JSON and TOML that anybody may have written
"""
