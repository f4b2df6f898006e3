"""Ring 3: the arena, evidence, trees and the live page, each a folder that the tool works without.

May import: fedsim.api, and nothing else of ours.
"""
