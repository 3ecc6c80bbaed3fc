from edgecompile import errors as errors
from edgecompile.api.build import Bundle as Bundle
from edgecompile.api.build import build as build
from edgecompile.api.explain import Explanation as Explanation
from edgecompile.api.explain import explain as explain
from edgecompile.api.plan import Plan as Plan
from edgecompile.api.plan import plan as plan
from edgecompile.api.progress import ProgressEvent as ProgressEvent
from edgecompile.api.verify import Verification as Verification
from edgecompile.api.verify import verify as verify
from edgecompile.bundle.materials import sbom as sbom
from edgecompile.loaders.factory_specs import ModelSpec as ModelSpec
from edgecompile.models.options import LoadOptions as LoadOptions
from edgecompile.planning.options import BuildOptions as BuildOptions
from edgecompile.planning.options import PlanOptions as PlanOptions
from edgecompile.runtime import Model as Model
from edgecompile.runtime import open_bundle as open_bundle
from edgecompile.signing.keys import generate_key as generate_key
from edgecompile.signing.sign import Signature as Signature
from edgecompile.signing.sign import sign as sign
from edgecompile.signing.sign import verify_signature as verify_signature

__version__: str
