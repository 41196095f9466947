from .diagnose import Diagnosis as Diagnosis
