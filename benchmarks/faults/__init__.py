"""Campaigns: faults thrown at real runs by the thousand, and what was lost by them, counted."""
