"""The theorems' floors, measured on problems that meet the paper's assumptions to the letter."""
