"""What a setting is: declared once, with its bounds and one sentence."""
