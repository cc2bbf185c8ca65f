//! Keys that are kept encrypted with other keys.

use object::seal::{DataKey, KEY_BYTES, SealError};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// The cipher with a key that wraps others.
fn cipher(wrapping: &[u8; KEY_BYTES]) -> Result<LessSafeKey, SealError> {
    UnboundKey::new(&AES_256_GCM, wrapping).map(LessSafeKey::new).map_err(|_| SealError::WrongKey)
}

/// A key encrypted with another one, as text. It can be opened only for what it is `about`.
pub(crate) fn wrap(wrapping: &[u8; KEY_BYTES], about: &[u8], key: &DataKey) -> Result<String, SealError> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::NoRandomness)?;
    let mut wrapped = key.bytes().to_vec();
    let sealed =
        cipher(wrapping)?.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(about), &mut wrapped);
    sealed.map_err(|_| SealError::WrongKey)?;
    Ok(base64_simd::STANDARD.encode_to_string([&nonce[..], &wrapped].concat()))
}

/// The reverse of [`wrap`].
pub(crate) fn unwrap(wrapping: &[u8; KEY_BYTES], about: &[u8], wrapped: &str) -> Result<DataKey, SealError> {
    let bytes = base64_simd::STANDARD.decode_to_vec(wrapped).map_err(|_| SealError::WrongKey)?;
    let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN).ok_or(SealError::WrongKey)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::WrongKey)?;
    let mut sealed = sealed.to_vec();
    let opened = cipher(wrapping)?.open_in_place(nonce, Aad::from(about), &mut sealed);
    let key = opened.ok().and_then(|key| <[u8; KEY_BYTES]>::try_from(&*key).ok());
    key.map(DataKey::new).ok_or(SealError::WrongKey)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_key_comes_back_with_the_key_it_was_wrapped_with_and_for_the_same_thing() {
        let (key, wrapping) = (DataKey::random().unwrap(), [7; KEY_BYTES]);
        let wrapped = wrap(&wrapping, b"b/k", &key).unwrap();
        assert_ne!(wrapped, wrap(&wrapping, b"b/k", &key).unwrap());
        assert_eq!(unwrap(&wrapping, b"b/k", &wrapped), Ok(key));
        assert_eq!(unwrap(&[8; KEY_BYTES], b"b/k", &wrapped), Err(SealError::WrongKey));
        assert_eq!(unwrap(&wrapping, b"b/other", &wrapped), Err(SealError::WrongKey));
        for bad in ["", "%", "AAAA", &wrapped[4..], &wrapped[..wrapped.len() - 4]] {
            assert_eq!(unwrap(&wrapping, b"b/k", bad), Err(SealError::WrongKey), "{bad}");
        }
    }
}
