"""Fields that programs send each other, and when. Begin with coupler.py."""
