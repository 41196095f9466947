"""What a setting is: declared once, with its default, its bounds and one sentence.

bounds     the kinds of numbers that settings are
section    a frozen class of settings, from which files, checks and descriptions are derived
problems   what is wrong with a setting, in a sentence
names      names and import paths for data, models and whatever else settings choose
"""
