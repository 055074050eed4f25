"""Commands for people: doctor, tune, fit, draw, sim, prove. Begin with README.md; each file is a command."""
